"""Autoscaling replayed on two traces and a synthetic day: the tables of docs/autoscaling.md, and its plots.

    make bench-autoscale ARGS='--traces=FOLDER'

``FOLDER`` has ``mooncake-conversation.jsonl`` and ``mooncake-synthetic.jsonl`` (docs/routing.md says where they are
from); without it the day alone is replayed. Nothing depends on the machine: the same traces give the same tables.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sapwood_tools.replay import cli

_HERE = Path(__file__).resolve().parent
_IMAGES = _HERE.parent / "docs" / "images"
_DAY = ("--speed=400", "--start-seconds=300", "--capacity-blocks=1000")
"""A larger model: it computes prompts at a twelfth of the speed, its weights take five times as long, and leave a fifth
of the room. So one request every two seconds makes a day of as many replicas as the traces, replayed in minutes."""
_SCENES = {
    "conversation": ("mooncake-conversation.jsonl", ()),
    "synthetic": ("mooncake-synthetic.jsonl", ()),
    "day": ("builtin:day", _DAY),
}


def main() -> int:
    """Replay what is there; exit code of the first replay that fails."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--traces", type=Path, help="folder with the traces; absent: the day alone")
    parser.add_argument("--scenes", default=",".join(_SCENES), help="comma-separated (default: %(default)s)")
    parser.add_argument("--policy", type=Path, default=_HERE / "autoscaling-policy.yaml", help="(default: %(default)s)")
    parser.add_argument("--images", type=Path, default=_IMAGES, help="folder for plots (default: %(default)s)")
    options = parser.parse_args()
    for name in options.scenes.split(","):
        file, more = _SCENES[name]
        if not file.startswith("builtin:"):
            if options.traces is None:
                print(f"{name}: left out; --traces says where {file} is", file=sys.stderr)
                continue
            file = str(options.traces / file)
        print(f"\n{name}\n", flush=True)
        code = cli.main(
            [file, f"--autoscale={options.policy}", f"--plots={options.images}/autoscaling-{name}", "--tune", *more]
        )
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
