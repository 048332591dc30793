# The extension module, written in C++: python_frontend/bind.cpp.
from typing import Any

def __getattr__(name: str) -> Any: ...
