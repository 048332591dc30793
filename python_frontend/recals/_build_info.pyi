# The module is written by CMake: python_frontend/_build_info.py.in.
VERSION: str
TORCH_VERSION: str
