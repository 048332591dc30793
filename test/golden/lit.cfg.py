# lit's configuration of the golden files: TorchScript source (.ts) or a graph as text (.ir), with the commands in
# "# RUN:" lines and what they must print in "# CHECK:" lines, which LLVM's FileCheck compares:
#
#   # RUN: %recals-opt %s --input='f32[4,8]' | %FileCheck %s
#
# Where a module has submodules, a RUN line makes it with a small Python program beside the golden (%python).
#
# One file by hand:  lit -v build/dev/test/golden/graph/in_place.ts  (lit finds the source by itself)
import os
import shlex
from pathlib import Path

import lit.formats

config.name = "golden"
config.test_format = lit.formats.ShTest()
config.suffixes = [".ts", ".ir"]
config.test_source_root = os.path.dirname(__file__)

tools = Path(config.recals_filecheck).parent
command = Path(config.recals_package_root) / "recals" / "bin" / "recals-opt"
config.substitutions.append(("%recals-opt", shlex.quote(str(command))))
# What the command behind it prints, stderr too, and "exit N".
config.substitutions.append(("%exit", """sh -c '"$@" 2>&1; echo "exit $?"' sh"""))
config.substitutions.append(("%python", shlex.quote(config.recals_python)))
config.substitutions.append(("%FileCheck", shlex.quote(config.recals_filecheck) + " --dump-input=fail"))
config.substitutions.append(("%not", shlex.quote(str(tools / "not"))))

config.environment["PYTHONPATH"] = config.recals_package_root
config.environment["PYTHONHASHSEED"] = "0"
# Goldens are small: threads would only cost start-up time.
config.environment["OMP_NUM_THREADS"] = "1"
# Bytes that are the same on every machine.
config.environment["RECALS_SCRATCH"] = "rules"
for name in ("ASAN_OPTIONS", "LD_PRELOAD", "UBSAN_OPTIONS", "LANG", "LC_ALL"):
    if name in os.environ:
        config.environment[name] = os.environ[name]
