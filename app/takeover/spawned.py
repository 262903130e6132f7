"""The main module of a process that `multiprocessing` spawns during a takeover: the parent's main program, taken over.

A spawned process imports the main program of its parent again, to unpickle what that defines. The parent names this
module instead, and the program in an environment variable, so that the takeover comes first.
"""

import json
import os
import runpy

from hexloop.app.takeover.replacing import SPAWNED, takeover

if __name__ == "__mp_main__":
    _parent = json.loads(os.environ[SPAWNED])
    takeover(_parent["reproduce"])
    if _parent["path"] is not None:
        globals().update(runpy.run_path(_parent["path"], run_name=__name__))
    else:
        globals().update(runpy.run_module(_parent["module"], run_name=__name__, alter_sys=True))
