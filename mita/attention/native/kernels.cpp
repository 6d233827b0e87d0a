// MiTA attention for processors, float32, forward and backward, behind a C interface (see op.py).
//
// Nothing is gathered: a matrix product takes its rows through pointers, so that the entries a query reads, [landmarks ; keys of its
// expert], are a list of row pointers and one softmax runs over them all. Scores are held transposed, (entries, queries), for the
// softmax over the entries to go along whole vectors of queries. Every sum has a fixed order, whatever the number of threads.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace {

#if defined(__AVX512F__)
constexpr int WIDTH = 16, ROWS = 8;  // floats of a vector; rows of a block of the product held in registers
#else
constexpr int WIDTH = 8, ROWS = 4;
#endif
static_assert(WIDTH % ROWS == 0, "what fills a vector fills whole blocks");
constexpr int PANEL = 2 * WIDTH;  // columns of such a block
constexpr int TILE = 64;          // queries of an expert taken at once
constexpr int KEYS = 256;         // keys probed at once
constexpr int CHUNKS = 8;         // parts of a head with sums of their own in the backward pass
constexpr float INF = std::numeric_limits<float>::infinity();

typedef float Vec __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef std::vector<float> Floats;
typedef std::vector<const float*> Pointers;

int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// exp, to two units in the last place: 2^n times the Taylor series on [-ln 2 / 2, ln 2 / 2]; 0 below -87, NaN for NaN.
inline float exponential(float x) {
    constexpr float magic = 12582912.f;  // adding it rounds to an integer, left in the low bits
    float y = x < -87.f ? -87.f : (x > 88.f ? 88.f : x);
    float shifted = y * 1.44269504f + magic;
    float n = shifted - magic;
    float r = (y - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.f / 5040;
    p = p * r + 1.f / 720;
    p = p * r + 1.f / 120;
    p = p * r + 1.f / 24;
    p = p * r + 1.f / 6;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.f;
    int32_t bits;
    std::memcpy(&bits, &shifted, 4);
    bits = (bits + 127) << 23;
    float power;
    std::memcpy(&power, &bits, 4);
    return x < -87.f ? 0.f : p * power;
}

// How the left factor A of a product is addressed: rows behind pointers, or a matrix with its strides.
struct ByPointer {
    const float* const* rows;
    float operator()(int64_t i, int64_t t) const { return rows[i][t]; }
};
struct Transposed {  // element (i, t) of A is element (t, i) of a row-major matrix
    const float* data;
    int64_t stride;
    float operator()(int64_t i, int64_t t) const { return data[t * stride + i]; }
};
struct RowMajor {
    const float* data;
    int64_t stride;
    float operator()(int64_t i, int64_t t) const { return data[i * stride + t]; }
};

// And the right factor B: row t of the panel that begins at column j.
struct Packed {  // panels of PANEL columns, each (depth, PANEL)
    const float* data;
    int64_t depth;
    const float* operator()(int64_t t, int64_t j) const { return data + j * depth + t * PANEL; }
};
struct Rows {
    const float* const* rows;
    const float* operator()(int64_t t, int64_t j) const { return rows[t] + j; }
};

template <int VECTORS, class A, class B>
void block(const A& a, const B& b, int64_t i, int64_t j, int64_t depth, bool add, float* c, int64_t stride) {
    Vec sum[ROWS][VECTORS];
    for (int r = 0; r < ROWS; ++r)
        for (int x = 0; x < VECTORS; ++x) sum[r][x] = add ? *(const Vec*)(c + (i + r) * stride + j + x * WIDTH) : Vec{};
    for (int64_t t = 0; t < depth; ++t) {
        const float* row = b(t, j);
        Vec right[VECTORS];
        for (int x = 0; x < VECTORS; ++x) right[x] = *(const Vec*)(row + x * WIDTH);
        for (int r = 0; r < ROWS; ++r) {
            const float left = a(i + r, t);
            for (int x = 0; x < VECTORS; ++x) sum[r][x] += left * right[x];
        }
    }
    for (int r = 0; r < ROWS; ++r)
        for (int x = 0; x < VECTORS; ++x) *(Vec*)(c + (i + r) * stride + j + x * WIDTH) = sum[r][x];
}

// C (rows, columns) = A B, or += A B. Whole blocks are computed: C has round_up(rows, ROWS) rows, and A as many; columns is a
// multiple of WIDTH.
template <class A, class B>
void multiply(int64_t rows, int64_t columns, int64_t depth, A a, B b, float* c, int64_t stride, bool add = false) {
    for (int64_t j = 0; j < columns; j += PANEL)
        for (int64_t i = 0; i < rows; i += ROWS)
            if (j + PANEL <= columns)
                block<2>(a, b, i, j, depth, add, c, stride);
            else
                block<1>(a, b, i, j, depth, add, c, stride);
}

// Rows behind pointers, transposed into panels, with zeros past the last.
void pack(const Pointers& rows, int64_t count, int64_t depth, Floats& panels) {
    panels.resize(round_up(count, PANEL) * depth);
    for (int64_t j = 0; j < round_up(count, PANEL); ++j) {
        float* to = panels.data() + j / PANEL * PANEL * depth + j % PANEL;
        for (int64_t t = 0; t < depth; ++t) to[t * PANEL] = j < count ? rows[j][t] : 0.f;
    }
}

// Pointers to rows of a matrix, with the first repeated to fill whole blocks.
void fill(Pointers& rows) {
    while (rows.size() % ROWS) rows.push_back(rows[0]);
}

struct Problem {
    int64_t heads, heads_per_item, queries, keys, landmarks, dim, value_dim, top_k;
    float scale, factor;   // of a key's and of a landmark's logit
    bool shared, routed;   // the branches that are read
    bool routes;           // whether experts are to be found
    const float *q, *k, *v, *l;
    const uint8_t *key_mask, *landmark_mask;
    float *o, *lse, *values, *values_lse;
    int32_t *selected, *experts;

    // The numbers of the real keys, or landmarks, of a head.
    std::vector<int32_t> real(const uint8_t* mask, int64_t head, int64_t count) const {
        std::vector<int32_t> numbers;
        for (int64_t i = 0; i < count; ++i)
            if (!mask || mask[head / heads_per_item * count + i]) numbers.push_back(i);
        return numbers;
    }
};

Pointers rows_of(const float* matrix, int64_t width, const std::vector<int32_t>& numbers) {
    Pointers rows;
    for (int32_t i : numbers) rows.push_back(matrix + i * width);
    return rows;
}

// The top_k best of a stream of scores that comes in the order of its keys: of equal ones the first. Scores are held as integers of
// the same order (-0.0 as 0.0). Entries keep the order of their keys.
struct Best {
    int64_t top_k, count = 0;
    std::vector<int32_t> scores, keys;
    float threshold = -INF;  // top_k entries reach it already, so a later one must exceed it

    explicit Best(int64_t k) : top_k(k), scores(2 * k), keys(2 * k) {}

    void add(float score, int32_t key) {
        score += 0.f;
        int32_t bits;
        std::memcpy(&bits, &score, 4);
        scores[count] = ordered(bits), keys[count] = key;
        if (++count == 2 * top_k) prune();
    }
    void prune() {
        if (count <= top_k) return;
        int32_t lowest = scores[0], highest = scores[0];
        const int32_t* x = scores.data();
#pragma omp simd reduction(min : lowest) reduction(max : highest)
        for (int64_t i = 0; i < count; ++i) {
            lowest = std::min(lowest, x[i]);
            highest = std::max(highest, x[i]);
        }
        int64_t low = lowest, high = highest;  // bisect for the top_k-th largest score
        while (low < high) {
            const int64_t middle = low + (high - low + 1) / 2;
            const int64_t reach = how_many([=](int32_t x) { return x >= (int32_t)middle; });
            if (reach >= top_k) low = middle;
            else high = middle - 1;
            if (reach == top_k) break;
        }
        const int32_t last = low;
        int64_t spare = top_k - how_many([=](int32_t x) { return x > last; }), kept = 0;
        for (int64_t i = 0; i < count; ++i) {
            const int32_t score = scores[i];
            const int64_t equal = score == last;  // no branches: they could not be foretold
            scores[kept] = score, keys[kept] = keys[i];
            kept += (score > last) | (equal & (spare > 0));
            spare -= equal;
        }
        count = top_k;
        const int32_t bits = ordered(last);
        std::memcpy(&threshold, &bits, 4);
    }

  private:
    static int32_t ordered(int32_t bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }  // its own inverse

    template <class Condition>
    int64_t how_many(Condition holds) const {
        int32_t sum = 0;
        const int32_t* x = scores.data();
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < count; ++i) sum += holds(x[i]);
        return sum;
    }
};

// Selection and landmark values of the landmarks [first, last) of a head, in one pass over its keys (online softmax).
void probe(const Problem& p, int64_t head, int64_t first, int64_t last) {
    const int64_t m = last - first, wide = round_up(m, WIDTH), d = p.dim, dv = p.value_dim;
    const std::vector<int32_t> keys = p.real(p.key_mask, head, p.keys);
    Pointers k_rows = rows_of(p.k + head * p.keys * d, d, keys), v_rows = rows_of(p.v + head * p.keys * dv, dv, keys);
    Pointers l_rows;
    for (int64_t i = first; i < last; ++i) l_rows.push_back(p.l + (head * p.landmarks + i) * d);
    Floats panels, scores(KEYS * wide), top(wide, -INF), total(wide, 0.f), values(round_up(m, ROWS) * dv, 0.f), thresholds(wide, INF);
    pack(l_rows, m, d, panels);
    std::vector<Best> best(m, Best(p.top_k));
    std::fill(thresholds.begin(), thresholds.begin() + m, p.top_k ? -INF : INF);

    for (int64_t start = 0; start < (int64_t)keys.size(); start += KEYS) {
        const int64_t n = std::min<int64_t>(KEYS, keys.size() - start);
        Pointers rows(k_rows.begin() + start, k_rows.begin() + start + n);
        fill(rows);
        multiply(n, wide, d, ByPointer{rows.data()}, Packed{panels.data(), d}, scores.data(), wide);
        Floats peak = top;
        for (int64_t t = 0; t < n; ++t)
            for (int64_t g = 0; g < wide; g += WIDTH) {
                float *s = scores.data() + t * wide + g, *high = peak.data() + g;
                const float* low = thresholds.data() + g;
                uint32_t chosen = 0;
#pragma omp simd reduction(| : chosen)
                for (int i = 0; i < WIDTH; ++i) {
                    s[i] *= p.scale;
                    high[i] = s[i] > high[i] ? s[i] : high[i];
                    chosen |= s[i] > low[i] ? 1u << i : 0u;
                }
                for (; chosen; chosen &= chosen - 1) {
                    const int i = __builtin_ctz(chosen);
                    best[g + i].add(s[i], keys[start + t]);
                    thresholds[g + i] = best[g + i].threshold;
                }
            }
        if (!p.shared) continue;
        for (int64_t i = 0; i < m; ++i) {
            const float shrink = exponential(top[i] - std::max(peak[i], std::numeric_limits<float>::lowest()));
            total[i] *= shrink;
            for (int64_t c = 0; c < dv; ++c) values[i * dv + c] *= shrink;
        }
        for (int64_t t = 0; t < n; ++t) {
            float* s = scores.data() + t * wide;
#pragma omp simd
            for (int64_t i = 0; i < wide; ++i) {
                s[i] = exponential(s[i] - peak[i]);
                total[i] += s[i];
            }
        }
        top = peak;
        multiply(m, dv, n, Transposed{scores.data(), wide}, Rows{v_rows.data() + start}, values.data(), dv, true);
    }

    for (int64_t i = 0; i < m; ++i) {
        const int64_t at = head * p.landmarks + first + i;
        if (p.shared) {
            p.values_lse[at] = keys.empty() ? -INF : top[i] + std::log(total[i]);
            for (int64_t c = 0; c < dv; ++c) p.values[at * dv + c] = keys.empty() ? 0.f : values[i * dv + c] / total[i];
        }
        best[i].prune();
        int32_t* out = p.selected + at * p.top_k;
        std::fill(std::copy_n(best[i].keys.begin(), best[i].count, out), out + p.top_k, -1);
    }
}

// The expert of each query in [first, last) of a head: the landmark with the largest product, the first of equal ones.
void route(const Problem& p, int64_t head, int64_t first, int64_t last) {
    const std::vector<int32_t> numbers = p.real(p.landmark_mask, head, p.landmarks);
    const int64_t m = numbers.size(), wide = round_up(m, WIDTH), d = p.dim;
    Floats panels, gate(TILE * wide);
    pack(rows_of(p.l + head * p.landmarks * d, d, numbers), m, d, panels);
    for (int64_t start = first; start < last; start += TILE) {
        const int64_t n = std::min<int64_t>(TILE, last - start);
        Pointers rows;
        for (int64_t i = 0; i < n; ++i) rows.push_back(p.q + (head * p.queries + start + i) * d);
        fill(rows);
        multiply(n, wide, d, ByPointer{rows.data()}, Packed{panels.data(), d}, gate.data(), wide);
        for (int64_t i = 0; i < n; ++i) {
            const float* g = gate.data() + i * wide;
            float top = -INF;
#pragma omp simd reduction(max : top)
            for (int64_t e = 0; e < m; ++e) top = g[e] > top ? g[e] : top;
            int64_t e = 0;
            while (e < m && g[e] != top) ++e;
            p.experts[head * p.queries + start + i] = e < m && top > -INF ? numbers[e] : -1;
        }
    }
}

// The queries of each expert of a head, in ascending order: those of expert e are order[starts[e]] to order[starts[e + 1]].
// Queries without an expert come last, as if of an expert m; without routing all queries do.
struct Groups {
    std::vector<int32_t> order;
    std::vector<int64_t> starts;
};
Groups group(const Problem& p, int64_t head) {
    Groups g{std::vector<int32_t>(p.queries), std::vector<int64_t>(p.landmarks + 2, 0)};
    auto expert = [&](int64_t i) {
        const int32_t e = p.routed ? p.experts[head * p.queries + i] : -1;
        return e < 0 ? p.landmarks : e;
    };
    for (int64_t i = 0; i < p.queries; ++i) ++g.starts[expert(i) + 1];
    for (int64_t e = 0; e <= p.landmarks; ++e) g.starts[e + 1] += g.starts[e];
    std::vector<int64_t> next(g.starts.begin(), g.starts.end() - 1);
    for (int64_t i = 0; i < p.queries; ++i) g.order[next[expert(i)]++] = i;
    return g;
}

// What the queries of one expert read: keys and values behind pointers, landmarks first, and the factor of each logit.
struct Entries {
    Pointers k, v;
    int64_t shared = 0, count = 0;
    std::vector<int32_t> landmarks;  // the numbers of the first `shared` entries

    Entries(const Problem& p, int64_t head) {
        if (!p.shared) return;
        landmarks = p.real(p.landmark_mask, head, p.landmarks);
        k = rows_of(p.l + head * p.landmarks * p.dim, p.dim, landmarks);
        v = rows_of(p.values + head * p.landmarks * p.value_dim, p.value_dim, landmarks);
        shared = landmarks.size();
    }
    const int32_t* choose(const Problem& p, int64_t head, int64_t expert) {
        k.resize(shared), v.resize(shared);
        const int32_t* keys = nullptr;
        if (p.routed && expert < p.landmarks) {
            keys = p.selected + (head * p.landmarks + expert) * p.top_k;
            for (int64_t j = 0; j < p.top_k && keys[j] >= 0; ++j) {
                k.push_back(p.k + (head * p.keys + keys[j]) * p.dim);
                v.push_back(p.v + (head * p.keys + keys[j]) * p.value_dim);
            }
        }
        count = k.size();
        if (count) fill(k), fill(v);
        return keys;
    }
};

// A tile of queries of one expert, and the scores of the entries they read: (entries, wide).
struct Tile {
    int64_t n, wide;
    Pointers q;
    Floats panels, scores;

    void load(const Problem& p, int64_t head, const int32_t* order, int64_t number) {
        n = number, wide = round_up(n, WIDTH);
        q = rows_of(p.q + head * p.queries * p.dim, p.dim, std::vector<int32_t>(order, order + n));
        pack(q, n, p.dim, panels);
    }
    void score(const Problem& p, const Entries& entries) {
        scores.resize(entries.k.size() * wide);
        multiply(entries.count, wide, p.dim, ByPointer{entries.k.data()}, Packed{panels.data(), p.dim}, scores.data(), wide);
        for (int64_t e = 0; e < entries.count; ++e) {
            const float factor = e < entries.shared ? p.factor : p.scale;
            float* s = scores.data() + e * wide;
#pragma omp simd
            for (int64_t i = 0; i < wide; ++i) s[i] *= factor;
        }
    }
};

// o and lse of the queries of the experts [first, last) of a head.
void read(const Problem& p, int64_t head, const Groups& groups, int64_t first, int64_t last) {
    Entries entries(p, head);
    Tile tile;
    const int64_t dv = p.value_dim;
    Floats top(TILE), total(TILE), out(TILE * dv);
    for (int64_t expert = first; expert < last; ++expert) {
        const int64_t begin = groups.starts[expert], end = groups.starts[expert + 1];
        if (begin == end) continue;
        entries.choose(p, head, expert);
        for (int64_t start = begin; start < end; start += TILE) {
            const int32_t* order = groups.order.data() + start;
            const int64_t n = std::min<int64_t>(TILE, end - start);
            if (!entries.count) {
                for (int64_t i = 0; i < n; ++i) {
                    const int64_t at = head * p.queries + order[i];
                    p.lse[at] = -INF;
                    std::fill(p.o + at * dv, p.o + (at + 1) * dv, 0.f);
                }
                continue;
            }
            tile.load(p, head, order, n);
            tile.score(p, entries);
            const int64_t wide = tile.wide;
            std::fill(top.begin(), top.end(), -INF);
            std::fill(total.begin(), total.end(), 0.f);
            for (int64_t e = 0; e < entries.count; ++e) {
                const float* s = tile.scores.data() + e * wide;
#pragma omp simd
                for (int64_t i = 0; i < wide; ++i) top[i] = s[i] > top[i] ? s[i] : top[i];
            }
            for (int64_t e = 0; e < entries.count; ++e) {
                float* s = tile.scores.data() + e * wide;
#pragma omp simd
                for (int64_t i = 0; i < wide; ++i) {
                    s[i] = exponential(s[i] - top[i]);
                    total[i] += s[i];
                }
            }
            multiply(n, dv, entries.count, Transposed{tile.scores.data(), wide}, Rows{entries.v.data()}, out.data(), dv);
            for (int64_t i = 0; i < n; ++i) {
                const int64_t at = head * p.queries + order[i];
                p.lse[at] = top[i] + std::log(total[i]);
                const float share = 1.f / total[i];
                for (int64_t c = 0; c < dv; ++c) p.o[at * dv + c] = out[i * dv + c] * share;
            }
        }
    }
}

// grad_scores = factor * P (dP - delta), in place of grad_scores = dP; scores become P. Both (rows, wide).
void softmax_backward(float* s, float* ds, int64_t wide, const float* lse, const float* delta, float factor) {
#pragma omp simd
    for (int64_t i = 0; i < wide; ++i) {
        s[i] = exponential(s[i] - lse[i]);
        ds[i] = factor * s[i] * (ds[i] - delta[i]);
    }
}

struct Gradients {
    const float* o;             // of the output
    float *q, *k, *v, *l;       // written
    // Of one head, used again for the next: sums of each of its chunks (CHUNKS, landmarks, dim or value_dim), and the gradients of the
    // entries of each expert (landmarks, top_k, dim or value_dim).
    Floats chunk_l, chunk_values, expert_k, expert_v, values;
    Groups groups;

    Gradients(const Problem& p, const float* o, float* q, float* k, float* v, float* l)
        : o(o), q(q), k(k), v(v), l(l), chunk_l(CHUNKS * p.landmarks * p.dim), chunk_values(CHUNKS * p.landmarks * p.value_dim),
          expert_k(p.routed ? p.landmarks * p.top_k * p.dim : 0), expert_v(p.routed ? p.landmarks * p.top_k * p.value_dim : 0),
          values(p.landmarks * p.value_dim) {}
};

// Queries, landmarks, landmark values and selected entries of the experts of one chunk of a head.
void read_backward(const Problem& p, Gradients& g, int64_t head, int64_t chunk) {
    const Groups& groups = g.groups;
    const int64_t d = p.dim, dv = p.value_dim, m = p.landmarks, experts = m + 1;
    const int64_t first = chunk * experts / CHUNKS, last = (chunk + 1) * experts / CHUNKS;
    Entries entries(p, head);
    Tile tile;
    Pointers dO;
    const int64_t most = round_up(entries.shared + p.top_k, ROWS);
    Floats panels, grad_scores, lse(TILE), delta(TILE), grad_q(TILE * d), grad_k(most * d, 0.f), grad_v(most * dv, 0.f);
    for (int64_t expert = first; expert < last; ++expert) {
        const int64_t begin = groups.starts[expert], end = groups.starts[expert + 1];
        if (begin == end) continue;
        entries.choose(p, head, expert);
        std::fill(grad_k.begin() + entries.shared * d, grad_k.end(), 0.f);
        std::fill(grad_v.begin() + entries.shared * dv, grad_v.end(), 0.f);
        for (int64_t start = begin; start < end; start += TILE) {
            const int32_t* order = groups.order.data() + start;
            const int64_t n = std::min<int64_t>(TILE, end - start);
            if (!entries.count) {
                for (int64_t i = 0; i < n; ++i) std::fill_n(g.q + (head * p.queries + order[i]) * d, d, 0.f);
                continue;
            }
            tile.load(p, head, order, n);
            tile.score(p, entries);
            const int64_t wide = tile.wide;
            dO = rows_of(g.o + head * p.queries * dv, dv, std::vector<int32_t>(order, order + n));
            pack(dO, n, dv, panels);
            grad_scores.resize(tile.scores.size());
            multiply(entries.count, wide, dv, ByPointer{entries.v.data()}, Packed{panels.data(), dv}, grad_scores.data(), wide);
            std::fill(lse.begin(), lse.end(), INF);  // exp(x - inf) = 0: what fills a tile weighs nothing
            std::fill(delta.begin(), delta.end(), 0.f);
            for (int64_t i = 0; i < n; ++i) {
                const int64_t at = head * p.queries + order[i];
                lse[i] = p.lse[at];
                for (int64_t c = 0; c < dv; ++c) delta[i] += dO[i][c] * p.o[at * dv + c];
            }
            for (int64_t e = 0; e < entries.count; ++e)
                softmax_backward(&tile.scores[e * wide], &grad_scores[e * wide], wide, lse.data(), delta.data(),
                                 e < entries.shared ? p.factor : p.scale);
            multiply(n, d, entries.count, Transposed{grad_scores.data(), wide}, Rows{entries.k.data()}, grad_q.data(), d);
            multiply(entries.count, d, n, RowMajor{grad_scores.data(), wide}, Rows{tile.q.data()}, grad_k.data(), d, true);
            multiply(entries.count, dv, n, RowMajor{tile.scores.data(), wide}, Rows{dO.data()}, grad_v.data(), dv, true);
            for (int64_t i = 0; i < n; ++i)
                std::memcpy(g.q + (head * p.queries + order[i]) * d, &grad_q[i * d], d * sizeof(float));
        }
        if (p.routed && expert < m) {
            const int64_t at = expert * p.top_k, chosen = entries.count - entries.shared;
            std::memcpy(&g.expert_k[at * d], &grad_k[entries.shared * d], chosen * d * sizeof(float));
            std::memcpy(&g.expert_v[at * dv], &grad_v[entries.shared * dv], chosen * dv * sizeof(float));
        }
    }
    std::fill_n(&g.chunk_l[chunk * m * d], m * d, 0.f);
    std::fill_n(&g.chunk_values[chunk * m * dv], m * dv, 0.f);
    for (int64_t i = 0; i < entries.shared; ++i) {
        const int64_t at = chunk * m + entries.landmarks[i];
        std::memcpy(&g.chunk_l[at * d], &grad_k[i * d], d * sizeof(float));
        std::memcpy(&g.chunk_values[at * dv], &grad_v[i * dv], dv * sizeof(float));
    }
}

// Keys and values of one chunk of a head, as the landmarks' probes and as entries of experts; adds to the chunk's landmarks.
void probe_backward(const Problem& p, Gradients& g, int64_t head, int64_t chunk) {
    const int64_t d = p.dim, dv = p.value_dim, m = p.landmarks, wide = round_up(m, WIDTH);
    const int64_t first = chunk * p.keys / CHUNKS, last = (chunk + 1) * p.keys / CHUNKS;
    if (!p.shared || p.key_mask) {  // otherwise every key is written
        std::fill_n(g.k + (head * p.keys + first) * d, (last - first) * d, 0.f);
        std::fill_n(g.v + (head * p.keys + first) * dv, (last - first) * dv, 0.f);
    }
    if (p.shared) {
        Pointers l_rows, value_rows;
        Floats lse(wide, INF), delta(wide, 0.f);
        for (int64_t i = 0; i < m; ++i) {
            const int64_t at = head * m + i;
            l_rows.push_back(p.l + at * d);
            value_rows.push_back(&g.values[i * dv]);
            lse[i] = p.values_lse[at] == -INF ? INF : p.values_lse[at];
            for (int64_t c = 0; c < dv; ++c) delta[i] += g.values[i * dv + c] * p.values[at * dv + c];
        }
        Floats l_panels, value_panels, scores(KEYS * wide), grad_scores(KEYS * wide);
        Floats grad_l(round_up(m, ROWS) * d, 0.f), grad_k(KEYS * d), grad_v(KEYS * dv);
        pack(l_rows, m, d, l_panels);
        pack(value_rows, m, dv, value_panels);
        std::vector<int32_t> keys;
        for (int64_t i = first; i < last; ++i)
            if (!p.key_mask || p.key_mask[head / p.heads_per_item * p.keys + i]) keys.push_back(i);
        for (int64_t start = 0; start < (int64_t)keys.size(); start += KEYS) {
            const int64_t n = std::min<int64_t>(KEYS, keys.size() - start);
            const std::vector<int32_t> some(keys.begin() + start, keys.begin() + start + n);
            Pointers k_rows = rows_of(p.k + head * p.keys * d, d, some), v_rows = rows_of(p.v + head * p.keys * dv, dv, some);
            fill(k_rows), fill(v_rows);
            multiply(n, wide, d, ByPointer{k_rows.data()}, Packed{l_panels.data(), d}, scores.data(), wide);
            multiply(n, wide, dv, ByPointer{v_rows.data()}, Packed{value_panels.data(), dv}, grad_scores.data(), wide);
            for (int64_t i = 0; i < n * wide; ++i) scores[i] *= p.scale;
            for (int64_t t = 0; t < n; ++t)
                softmax_backward(&scores[t * wide], &grad_scores[t * wide], wide, lse.data(), delta.data(), p.scale);
            multiply(m, d, n, Transposed{grad_scores.data(), wide}, Rows{k_rows.data()}, grad_l.data(), d, true);
            multiply(n, d, m, RowMajor{grad_scores.data(), wide}, Rows{l_rows.data()}, grad_k.data(), d);
            multiply(n, dv, m, RowMajor{scores.data(), wide}, Rows{value_rows.data()}, grad_v.data(), dv);
            for (int64_t t = 0; t < n; ++t) {
                std::memcpy(g.k + (head * p.keys + some[t]) * d, &grad_k[t * d], d * sizeof(float));
                std::memcpy(g.v + (head * p.keys + some[t]) * dv, &grad_v[t * dv], dv * sizeof(float));
            }
        }
        float* sum = &g.chunk_l[chunk * m * d];
        for (int64_t i = 0; i < m * d; ++i) sum[i] += grad_l[i];
    }
    if (!p.routed) return;
    for (int64_t e = 0; e < m; ++e) {
        if (g.groups.starts[e] == g.groups.starts[e + 1]) continue;  // nobody read it
        const int32_t* keys = p.selected + (head * m + e) * p.top_k;
        int64_t count = p.top_k;
        while (count && keys[count - 1] < 0) --count;
        for (int64_t j = std::lower_bound(keys, keys + count, first) - keys; j < count && keys[j] < last; ++j) {
            const int64_t from = e * p.top_k + j, to = head * p.keys + keys[j];
            for (int64_t c = 0; c < d; ++c) g.k[to * d + c] += g.expert_k[from * d + c];
            for (int64_t c = 0; c < dv; ++c) g.v[to * dv + c] += g.expert_v[from * dv + c];
        }
    }
}

// out (size) = the sum over chunks of parts (CHUNKS, size).
void sum_chunks(const Floats& parts, int64_t size, float* out) {
    std::copy_n(parts.data(), size, out);
    for (int64_t chunk = 1; chunk < CHUNKS; ++chunk)
        for (int64_t i = 0; i < size; ++i) out[i] += parts[chunk * size + i];
}

}  // namespace

extern "C" {

// Rows must hold a multiple of this many floats.
int mita_row_multiple() { return PANEL; }

void mita_forward(const Problem* problem, int threads) {
    const Problem& p = *problem;
    const int64_t blocks = std::max<int64_t>(1, std::min(p.landmarks, p.heads >= threads ? p.landmarks / 128 : p.landmarks / 16));
    std::vector<Groups> groups(p.heads);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(dynamic) collapse(2)
        for (int64_t head = 0; head < p.heads; ++head)
            for (int64_t b = 0; b < blocks; ++b) probe(p, head, b * p.landmarks / blocks, (b + 1) * p.landmarks / blocks);
#pragma omp for schedule(dynamic) collapse(2)
        for (int64_t head = 0; head < p.heads; ++head)
            for (int64_t chunk = 0; chunk < CHUNKS; ++chunk)
                if (p.routes) route(p, head, chunk * p.queries / CHUNKS, (chunk + 1) * p.queries / CHUNKS);
#pragma omp for schedule(dynamic)
        for (int64_t head = 0; head < p.heads; ++head) groups[head] = group(p, head);
#pragma omp for schedule(dynamic) collapse(2)
        for (int64_t head = 0; head < p.heads; ++head)
            for (int64_t chunk = 0; chunk < CHUNKS; ++chunk)
                read(p, head, groups[head], chunk * (p.landmarks + 1) / CHUNKS, (chunk + 1) * (p.landmarks + 1) / CHUNKS);
    }
}

void mita_backward(const Problem* problem, const float* grad_o, float* grad_q, float* grad_k, float* grad_v, float* grad_l, int threads) {
    const Problem& p = *problem;
    // So many heads at once that every thread has a chunk: what they need is allocated once, and stays in the cache.
    const int64_t at_once = std::min<int64_t>(p.heads, (threads + CHUNKS - 1) / CHUNKS);
    std::vector<Gradients> parts(at_once, Gradients(p, grad_o, grad_q, grad_k, grad_v, grad_l));
#pragma omp parallel num_threads(threads)
    for (int64_t first = 0; first < p.heads; first += at_once) {
        const int64_t heads = std::min(at_once, p.heads - first);
#pragma omp for schedule(dynamic)
        for (int64_t h = 0; h < heads; ++h) parts[h].groups = group(p, first + h);
#pragma omp for schedule(dynamic) collapse(2)
        for (int64_t h = 0; h < heads; ++h)
            for (int64_t chunk = 0; chunk < CHUNKS; ++chunk) read_backward(p, parts[h], first + h, chunk);
#pragma omp for schedule(dynamic)
        for (int64_t h = 0; h < heads; ++h) sum_chunks(parts[h].chunk_values, p.landmarks * p.value_dim, parts[h].values.data());
#pragma omp for schedule(dynamic) collapse(2)
        for (int64_t h = 0; h < heads; ++h)
            for (int64_t chunk = 0; chunk < CHUNKS; ++chunk) probe_backward(p, parts[h], first + h, chunk);
#pragma omp for schedule(dynamic)
        for (int64_t h = 0; h < heads; ++h)
            sum_chunks(parts[h].chunk_l, p.landmarks * p.dim, grad_l + (first + h) * p.landmarks * p.dim);
    }
}
}
