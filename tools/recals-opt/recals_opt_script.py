#!python
"""Installed as `recals-opt`: starts the command that lies in the recals package. Does not import the package, which
would load torch for nothing."""

import importlib.util
import os
import sys

package = importlib.util.find_spec("recals")
if package is None or not package.submodule_search_locations:
    sys.exit("recals-opt: the Python of this script has no recals package: " + sys.executable)
command = os.path.join(package.submodule_search_locations[0], "bin", "recals-opt")
os.execv(command, ["recals-opt", *sys.argv[1:]])
