"""Autoscaling replayed on two traces and a synthetic day: the tables of docs/autoscaling.md, and its plots.

    make bench-autoscale ARGS='--traces=FOLDER'

``FOLDER`` has ``mooncake-conversation.jsonl`` and ``mooncake-synthetic.jsonl`` (docs/routing.md says where they are
from); without it the day alone is replayed. ``--write`` puts the tables into the page. Nothing depends on the machine:
the same traces give the same tables. How long it took is said at the end of each.
"""

from __future__ import annotations

import argparse
import io
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

from sapwood_tools.replay import cli
from sapwood_tools.replay.autoscale.page import written

_HERE = Path(__file__).resolve().parent
_DOCS = _HERE.parent / "docs"
_DAY = ("--speed=500", "--start-seconds=300", "--capacity-blocks=1000")
"""A larger model: it computes prompts at a tenth of the speed, its weights take five times as long, and leave a fifth
of the room. Its context is 8,192 tokens, so the longest prompt takes 16 s alone, half of the promise."""
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
    parser.add_argument("--images", type=Path, default=_DOCS / "images", help="folder for plots (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/autoscaling.md")
    options = parser.parse_args()
    told: dict[str, str] = {}
    for name in options.scenes.split(","):
        file, more = _SCENES[name]
        if not file.startswith("builtin:"):
            if options.traces is None:
                print(f"{name}: left out; --traces says where {file} is", file=sys.stderr)
                continue
            file = str(options.traces / file)
        print(f"\n{name}\n", flush=True)
        began, printed = time.monotonic(), io.StringIO()
        with redirect_stdout(printed):
            code = cli.main(
                [file, f"--autoscale={options.policy}", f"--plots={options.images}/autoscaling-{name}", "--tune", *more]
            )
        print(printed.getvalue(), end="")
        print(f"\nreplayed in {time.monotonic() - began:.0f} s", flush=True)
        if code:
            return code
        told[name] = printed.getvalue()
    if options.write:
        page = _DOCS / "autoscaling.md"
        page.write_text(written(page.read_text(encoding="utf-8"), told), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
