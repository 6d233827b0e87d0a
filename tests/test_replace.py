import copy
import pickle
from functools import partial

import pytest
import timm
import torch
from torch import nn

from mita import TokenLayout, replace_attention
from mita.mechanisms import SoftmaxAttention

MODELS = {  # name -> prefix tokens, side of a patch
    "vit_tiny_patch16_224": (1, 16),
    "deit3_small_patch16_224": (1, 16),
    "vit_base_patch14_dinov2": (1, 14),
    "vit_base_patch14_reg4_dinov2": (5, 14),
}
SIZES = {16: [(224, 224), (160, 256)], 14: [(224, 224), (168, 252)]}
EVERY_CASE = [(name, size) for name, (_, patch) in MODELS.items() for size in SIZES[patch]]
FULL = {"branches": "route", "num_landmarks": 1, "top_k": 10_000}  # one expert that keeps every key: softmax attention


def make(name="vit_tiny_patch16_224", **options):
    torch.manual_seed(0)
    return timm.create_model(name, **(dict(depth=2, num_classes=10, dynamic_img_size=True) | options)).eval()


def small(**options):
    """Two blocks, two heads, and logits far enough from zero that one attention differs from another."""
    model = make(**(dict(embed_dim=32, num_heads=2, img_size=64) | options))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1 and ("attn" in name or "head" in name):
                p.normal_(std=0.3)
    return model


def images(*size, batch=2):
    return torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(1))


def close(ours, theirs, atol=1e-4):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


def gradients(model, *sizes):
    model.zero_grad()
    sum(model(images(*size)).pow(2).sum() for size in sizes).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name, size", EVERY_CASE)
def test_one_expert_with_every_key_is_the_model_itself(name, size):
    model, x = make(name), images(*size)
    with torch.no_grad():
        logits, features = model(x), model.forward_features(x)
        assert replace_attention(model, "mita", **FULL) is model
        close(model(x), logits)
        close(model.forward_features(x), features)


@pytest.mark.parametrize("name, size", EVERY_CASE)
def test_forward_backward_and_intermediates(name, size):
    model = replace_attention(make(name), "mita", num_landmarks=9, top_k=7)
    (prefix, patch), (height, width) = MODELS[name], size
    last, maps = model.forward_intermediates(images(*size), indices=2)
    grid = (height // patch, width // patch)
    assert [m.shape for m in maps] == 2 * [(2, model.embed_dim, *grid)]
    assert last.shape == (2, prefix + grid[0] * grid[1], model.embed_dim)
    for block in model.blocks:
        assert block.attn.grid.layout() == TokenLayout(grid, prefix)
        assert (block.attn.mechanism.num_landmarks, block.attn.mechanism.top_k) == (9, 7)
    model.forward_head(last).sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    assert all(block.attn.qkv.weight.grad.abs().sum() > 0 for block in model.blocks)


def test_the_five_lines_of_the_readme():
    """With `pretrained=False`; nothing else differs."""
    model = timm.create_model("deit3_small_patch16_224", pretrained=False, dynamic_img_size=True)
    replace_attention(model, "mita", num_landmarks=25, top_k=25)
    logits = model(torch.randn(2, 3, 160, 256))  # any image size: the grid is taken from each batch
    logits.sum().backward()
    assert logits.shape == (2, 1000)
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_checkpoints_load_before_and_after(name):
    theirs = make(name, img_size=224, dynamic_img_size=False)
    ours = replace_attention(make(name, img_size=224, dynamic_img_size=False), "mita", num_landmarks=4, top_k=5)
    before = copy.deepcopy(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for p in theirs.parameters():
        nn.init.normal_(p, std=0.02)
    assert ours.load_state_dict(theirs.state_dict()) == ([], [])
    replace_attention(before, "mita", num_landmarks=4, top_k=5).load_state_dict(ours.state_dict())
    x = images(*ours.patch_embed.img_size, batch=1)
    with torch.no_grad():
        close(ours(x), replace_attention(theirs, "mita", num_landmarks=4, top_k=5)(x), atol=0)
        close(ours(x), before(x), atol=0)


def test_weights_stay_the_parameters_that_an_optimizer_has():
    model = small(init_values=1e-4, qk_norm=True).double()
    model.blocks[0].attn.qkv.weight.requires_grad_(False)
    parameters = dict(model.named_parameters())
    replace_attention(model.train(), "mita", num_landmarks=4, top_k=5)
    assert all(p is parameters.pop(name) for name, p in model.named_parameters()) and not parameters
    assert not model.blocks[0].attn.qkv.weight.requires_grad
    assert all(module.training for module in model.modules())
    with torch.no_grad():
        assert model(images(64, 64).double()).dtype == torch.float64


EXTRAS = {
    "query and key norms": dict(qk_norm=True),
    "norm of the output": dict(scale_attn_norm=True, scale_mlp_norm=True),
    "no bias": dict(qkv_bias=False, proj_bias=False),
    "layer scale": dict(init_values=0.5),
    "no position for the class token": dict(no_embed_class=True, reg_tokens=3),
    "no prefix": dict(class_token=False, global_pool="avg"),
    "no position": dict(pos_embed="none"),
    "norm before": dict(pre_norm=True),
    "norm after": dict(block_fn=timm.models.vision_transformer.ResPostBlock),
    "parallel attentions": dict(block_fn=timm.models.vision_transformer.ParallelThingsBlock),
    "attention pooling": dict(global_pool="map"),
    "a fixed rectangle": dict(img_size=(48, 80), dynamic_img_size=False),
    "padded images": dict(dynamic_img_pad=True),
}


@pytest.mark.parametrize("options", EXTRAS.values(), ids=EXTRAS)
def test_what_a_timm_attention_has_is_carried(options):
    model, x = small(**options), images(*((42, 75) if "dynamic_img_pad" in options else (48, 80)))
    with torch.no_grad():
        expected = model(x)
        close(replace_attention(model, "softmax")(x), expected, atol=1e-5)
        close(replace_attention(model, "mita", **FULL)(x), expected, atol=1e-5)
        assert (replace_attention(model, "mita", num_landmarks=4, top_k=2)(x) - expected).abs().max() > 1e-5


def test_gate_and_output_dropout_are_carried():
    model = small(proj_drop_rate=0.5)
    for block in model.blocks:  # no model of timm's builds this variant by a flag
        gated = timm.layers.Attention(32, 2, qkv_bias=True, gated=True, proj_drop=0.5)
        gated.load_state_dict(block.attn.state_dict(), strict=False)
        block.attn = gated
    x = images(48, 80)
    expected = {}
    for training in (False, True):
        torch.manual_seed(0)
        expected[training] = model.train(training)(x)
    replace_attention(model, "softmax")
    for training in (False, True):
        torch.manual_seed(0)
        close(model.train(training)(x), expected[training], atol=1e-5)
    assert not torch.allclose(expected[True], expected[False])


def test_distilled_deit_has_two_prefix_tokens():
    model = make("deit_tiny_distilled_patch16_224")
    x = images(160, 256)
    with torch.no_grad():
        expected = model(x)
        close(replace_attention(model, "mita", **FULL)(x), expected)
    assert model.blocks[0].attn.grid.layout() == TokenLayout((10, 16), 2)


def test_a_factory_is_called_for_each_attention_and_may_bring_parameters():
    class Shifted(SoftmaxAttention):
        def __init__(self, num_heads, head_dim):
            super().__init__(num_heads, head_dim)
            self.shift = nn.Parameter(torch.zeros(head_dim))

        def attend(self, q, k, v, layout, key_mask):
            return super().attend(q, k, v, layout, key_mask) + self.shift

    model, x = small().double(), images(64, 64).double()
    keys, expected = set(model.state_dict()), model(x)
    close(replace_attention(model, Shifted)(x), expected, atol=1e-10)
    new = {f"blocks.{i}.attn.mechanism.shift" for i in range(2)}
    assert set(model.state_dict()) == keys | new
    assert all(model.get_parameter(name).shape == (16,) for name in new)
    assert all(model.get_parameter(name).dtype == torch.float64 for name in new)


def test_replacing_again_changes_the_mechanism_and_adds_no_hook():
    model, x = small(), images(48, 80)
    expected = model(x)
    replace_attention(model, "mita", num_landmarks=4, top_k=2)
    hooks = [len(module._forward_hooks) for module in model.modules()]
    close(replace_attention(model, "softmax")(x), expected, atol=1e-5)
    assert [len(module._forward_hooks) for module in model.modules()] == hooks


@pytest.mark.parametrize("when", ["before", "after"])
def test_features_only(when):
    def features(**options):
        return make("vit_base_patch14_reg4_dinov2", features_only=True, out_indices=(0, 1), depth=3, **options)

    x, model = images(168, 252), features()
    with torch.no_grad():
        expected = model(x)
    assert len(model.model.blocks) == 2
    if when == "before":  # the wrapper is what is given
        replace_attention(model, "mita", **FULL)
    else:
        replace_attention(model.model, "mita", **FULL)
    with torch.no_grad():
        close(model(x), expected)
    assert [f.shape for f in expected] == 2 * [(2, 768, 12, 18)]


def test_the_grid_is_that_of_each_forward():
    """48x80 and 80x48 have as many patches, so only the grid tells their landmarks apart."""
    model = replace_attention(small(), "mita", num_landmarks=4, top_k=2)
    alone = {size: copy.deepcopy(model)(images(*size)) for size in ((48, 80), (80, 48), (64, 64))}
    for size in ((48, 80), (80, 48), (64, 64), (48, 80)):
        close(model(images(*size)), alone[size], atol=0)


def test_copies_know_their_own_grid():
    model = replace_attention(small(), "mita", num_landmarks=4, top_k=2)
    expected = model(images(48, 80))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.blocks[0].attn.grid is other.blocks[1].attn.grid is not model.blocks[0].attn.grid
        other(images(80, 48))
        assert model.blocks[0].attn.grid.sides == (3, 5)
        assert other.blocks[0].attn.grid.sides == (5, 3)
        close(other(images(48, 80)), expected, atol=0)


def test_set_input_size_and_a_new_head():
    model = replace_attention(small(dynamic_img_size=False), "mita", num_landmarks=4, top_k=2)
    model.set_input_size((48, 80))
    model.reset_classifier(3)
    assert model(images(48, 80)).shape == (2, 3)
    assert model.blocks[1].attn.grid.sides == (3, 5)


@pytest.mark.parametrize("sizes", [[(48, 80)], [(48, 80), (80, 48)], [(64, 64), (32, 48), (80, 48)]], ids=str)
def test_checkpointed_gradients_are_the_same(sizes):
    """With several sizes before one backward, as multi-crop training has, each block goes back to its own grid."""
    model = replace_attention(small().double(), "mita", num_landmarks=4, top_k=2)
    torch.set_default_dtype(torch.float64)
    try:
        expected = gradients(model, *sizes)
        model.set_grad_checkpointing()
        close(gradients(model, *sizes), expected, atol=1e-12)
    finally:
        torch.set_default_dtype(torch.float32)


def test_checkpointed_intermediates_go_back_to_their_grid():
    model = replace_attention(small(), "mita", num_landmarks=4, top_k=2)

    def gradient():
        model.zero_grad()
        first = model.forward_intermediates(images(48, 80), indices=[0], intermediates_only=True, stop_early=True)
        model(images(80, 48)).detach()
        first[0].pow(2).sum().backward()
        return model.blocks[0].attn.qkv.weight.grad.clone()

    expected = gradient()
    model.set_grad_checkpointing()
    close(gradient(), expected, atol=1e-6 * expected.abs().max())


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # from the forward without gradients
def test_reentrant_checkpointing_is_refused():
    model = replace_attention(small(), "mita", num_landmarks=4, top_k=2)
    model.set_grad_checkpointing()
    timm.layers.set_reentrant_ckpt(True)
    try:
        with pytest.raises(ValueError, match="reentrant"):
            model(images(64, 64))
        with torch.no_grad():
            model(images(64, 64))
    finally:
        timm.layers.set_reentrant_ckpt(False)
    with torch.no_grad():  # looks the same from within, but is none
        model.blocks(model._pos_embed(model.patch_embed(images(64, 64))).requires_grad_())


@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointing"])
def test_compiled_whole_equals_eager(checkpointing):
    model = replace_attention(small(), "mita", num_landmarks=4, top_k=2)
    model.set_grad_checkpointing(checkpointing)
    sizes = [(48, 80), (80, 48)]  # the second is compiled for every size
    expected = [(model(images(*size)), gradients(model, size)) for size in sizes]
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for size, (logits, grads) in zip(sizes, expected):
        close(compiled(images(*size)), logits, atol=1e-5)
        got = gradients(compiled, size)
        close({name.removeprefix("_orig_mod."): g for name, g in got.items()}, grads, atol=1e-4)


def test_autocast():
    model = replace_attention(small(qk_norm=True), "mita", num_landmarks=4, top_k=2)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(images(48, 80)).isfinite().all()


def refused(model, words, *arguments, **options):
    classes = [type(module) for module in model.modules()]
    with pytest.raises(ValueError, match=words) as error:
        replace_attention(model, *(arguments or ("mita",)), **options)
    assert "\n" not in str(error.value)
    assert [type(module) for module in model.modules()] == classes


@pytest.mark.parametrize("options", [{"attn_mask": torch.zeros(17, 17)}, {"is_causal": True}], ids=list)
def test_masks_and_causal_attention_are_refused(options):
    model = replace_attention(small(), "mita", num_landmarks=4, top_k=2)
    with pytest.raises(ValueError, match=next(iter(options))):
        model(images(64, 64), **options)
    with pytest.raises(ValueError, match=next(iter(options))):
        model.forward_intermediates(images(64, 64), **options)


def test_models_that_are_no_timm_vision_transformer_are_refused():
    swin = timm.create_model("swin_tiny_patch4_window7_224", depths=(1, 1, 1, 1), embed_dim=12, num_heads=(1, 1, 1, 1))
    refused(swin, "SwinTransformer")
    refused(nn.Sequential(nn.Linear(2, 2)), "Sequential")
    refused(timm.create_model("eva02_tiny_patch14_224", depth=1), "Eva")  # rope
    refused(timm.create_model("vit_tiny_patch16_224", use_naflex=True, depth=1), "NaFlexVit")


def test_what_cannot_be_carried_is_refused():
    blocks = timm.models.vision_transformer
    refused(small(attn_drop_rate=0.1), r"blocks\.0\.attn .*attn_drop_rate")
    refused(small(patch_drop_rate=0.5), "patch_drop_rate")
    refused(small(attn_layer="diff"), r"blocks\.0 .*DiffAttention")
    refused(small(attn_layer=type("MyAttention", (timm.layers.Attention,), {})), "MyAttention")
    refused(small(block_fn=blocks.ParallelScalingBlock), "ParallelScalingBlock")
    refused(small(block_fn=partial(blocks.DiffParallelScalingBlock)), "DiffParallelScalingBlock")
    for hooked in (lambda attention: attention, lambda attention: attention.attn_drop):
        model = small()
        hooked(model.blocks[1].attn).register_forward_hook(lambda *_: None)
        refused(model, r"blocks\.1\.attn .*hooks")
    model = small()
    model.blocks[1].attn.scale *= 2
    refused(model, r"blocks\.1\.attn .*scale")
    model = small()
    model.patch_embed = nn.Conv2d(3, 32, 16)
    refused(model, "Conv2d.*dynamic_feat_size")


def test_slips_are_refused_and_change_nothing():
    refused(small(), "did you mean mita", "mitta")
    refused(small(), "num_landmarks", "mita", num_landmark=4)
    refused(small(), "at least 1", "mita", top_k=0)
    refused(small(), "top_k.*factory", SoftmaxAttention, top_k=4)


def test_tokens_that_are_not_those_of_the_grid_are_refused():
    model = replace_attention(small(), "mita", num_landmarks=4, top_k=2)
    with pytest.raises(ValueError, match="call the whole model"):
        model.blocks(torch.randn(1, 17, 32))
    model(images(64, 64))
    with pytest.raises(ValueError, match=r"\b18\b.*\b17\b"):
        model.blocks(torch.randn(1, 18, 32))
