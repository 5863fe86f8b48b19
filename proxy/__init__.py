"""The gateway's command and processes: `config` is what they are told, `supervisor` starts them.

`wire`, `serving` and `upstream` are the serving path; `control` is everything that may take time; `admin` and `doctor` are how
people look at it. What is left here is shared by several of them.
"""

import os
import sys

from proxy.built import take_sources_if_asked

take_sources_if_asked(os.environ, sys.meta_path)  # before any other module of the gateway is looked for
