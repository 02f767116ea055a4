"""Write the parts of Kubernetes' own schemas that a manifest needs: python scripts/kubernetes_schemas.py WHEEL OUT.json

WHEEL is a wheel of the package kubernetes-validate, which holds the schemas of every version of Kubernetes. Written are
the definitions of a Deployment and of all that it refers to, in the strict form (unknown keys are refused), without
descriptions.
"""

import json
import re
import sys
import zipfile
from typing import Any

ROOT = "io.k8s.api.apps.v1.Deployment"


def main(wheel: str, out: str) -> None:
    with zipfile.ZipFile(wheel) as files:
        names = [name for name in files.namelist() if name.endswith("-local-strict/_definitions.json")]
        newest = max(names, key=lambda name: [int(part) for part in re.findall(r"v(\d+)\.(\d+)", name)[0]])
        known = json.loads(files.read(newest))["$defs"]
    kept: dict[str, Any] = {}
    waiting = [ROOT]
    while waiting:
        name = waiting.pop()
        if name not in kept:
            kept[name] = _bare(known[name])
            waiting += re.findall(r'"#/\$defs/([^"]+)"', json.dumps(kept[name]))
    version = re.findall(r"v\d+\.\d+\.\d+", newest)[0]
    with open(out, "w", encoding="utf-8") as file:
        json.dump({"version": version, "$defs": kept}, file, sort_keys=True, separators=(",", ":"))
        file.write("\n")
    print(f"{out}: {len(kept)} definitions of Kubernetes {version}")


def _bare(node: Any) -> Any:
    """Return a definition without descriptions."""
    if isinstance(node, dict):
        return {key: _bare(value) for key, value in node.items()
                if not (key == "description" and isinstance(value, str))}
    return [_bare(value) for value in node] if isinstance(node, list) else node


if __name__ == "__main__":
    main(*sys.argv[1:])
