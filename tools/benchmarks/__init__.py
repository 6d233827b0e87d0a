"""What `tools/benchmark.py` measures, a file each: `add_arguments(parser)`, and `measure(arguments)`, which returns the rows."""
