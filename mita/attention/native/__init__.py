"""The core in C++ for processors; `library.py` builds it with the machine's compiler, `op.py` calls it."""
