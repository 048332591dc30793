# lit's configuration of the golden files. Each is a Python program (or a graph in text form) that prints, with its
# commands in "# RUN:" lines and what it must print in "# CHECK:" lines, which LLVM's FileCheck compares:
#
#   # RUN: %python %s | %FileCheck %s
#
# One file by hand:  lit -v build/dev/test/golden/graph/inline.py  (lit finds the source by itself)
import os
import shlex
from pathlib import Path

import lit.formats

config.name = "golden"
config.test_format = lit.formats.ShTest()
config.suffixes = [".py", ".ir"]
config.excludes = ["lit.cfg.py", "check_directives.py"]
config.test_source_root = os.path.dirname(__file__)

tools = Path(config.recals_filecheck).parent
config.substitutions.append(("%python", shlex.quote(config.recals_python)))
config.substitutions.append(("%FileCheck", shlex.quote(config.recals_filecheck) + " --dump-input=fail"))
config.substitutions.append(("%not", shlex.quote(str(tools / "not"))))

config.environment["PYTHONPATH"] = config.recals_package_root
config.environment["PYTHONHASHSEED"] = "0"
# Goldens are small: threads would only cost start-up time.
config.environment["OMP_NUM_THREADS"] = "1"
for name in ("ASAN_OPTIONS", "LD_PRELOAD", "UBSAN_OPTIONS", "LANG", "LC_ALL"):
    if name in os.environ:
        config.environment[name] = os.environ[name]
