# SPDX-License-Identifier: Apache-2.0
"""schemathesis against a running server, by its own /openapi.json. Usage: openapi.py PATH_OF_SPARROW [EXAMPLES]

Requests that fit the description and such that do not: no answer may be a 500, have a status, a type or a shape that is
not described, or take what the description forbids. Exits with 77 where schemathesis is not installed.
"""

import importlib.util
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

if importlib.util.find_spec("schemathesis") is None:
    print("skipped: schemathesis is not installed here")
    sys.exit(77)

SPARROW = sys.argv[1]
EXAMPLES = sys.argv[2] if len(sys.argv) > 2 else "4"
# That all which fits is taken cannot be said in a schema: lengths depend on the model, and fields on each other.
LEFT_OUT = "positive_data_acceptance"

with tempfile.TemporaryDirectory() as folder:
    model, log = pathlib.Path(folder) / "tiny", pathlib.Path(folder) / "log"
    subprocess.run([SPARROW, "make-model", "--preset", "tiny", "--seed", "3", "--out", model], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(log, "w") as file:
        # A short context: answers without max_tokens fill it.
        server = subprocess.Popen([SPARROW, "serve", model, "--port", "0", "--device", "cpu", "--max-model-len", "512",
                                   "--kv-cache-memory", "64M"], stderr=file)
    try:
        for _ in range(600):
            if found := re.search(r"at (http://[^,]+),", log.read_text()):
                break
            time.sleep(0.1)
        result = subprocess.run([sys.executable, "-m", "schemathesis.cli", "run", found.group(1) + "/openapi.json",
                                 "--exclude-checks", LEFT_OUT, "--max-examples", EXAMPLES,
                                 "--generation-deterministic",
                                 # How much it throws away while it makes up requests is its own affair.
                                 "--suppress-health-check", "all"], cwd=folder)
    finally:
        server.send_signal(signal.SIGTERM)
        ended = server.wait(timeout=60)
sys.exit(result.returncode or ended)
