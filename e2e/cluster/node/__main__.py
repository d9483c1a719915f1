"""``python -m cluster.node SETTINGS.json``: the program of a node, started inside the cluster's namespaces."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path

from cluster.node.agent import Agent
from cluster.node.api import open_api
from cluster.node.images import Image
from cluster.node.settings import NodeSettings


def load(path: Path) -> tuple[NodeSettings, Path]:
    """Return the settings that ``cluster.nodes`` wrote, and the folder of the identities."""
    given = json.loads(path.read_text(encoding="utf-8"))
    images = [Image(**image) for image in given.pop("images")]
    pki = Path(given.pop("pki"))
    folder, launcher = Path(given.pop("folder")), Path(given.pop("launcher"))
    return NodeSettings(folder=folder, launcher=launcher, images=images, **given), pki


async def _run(settings: NodeSettings, pki: Path) -> None:
    async with open_api(pki / f"{settings.name}.kubeconfig") as api:
        await Agent(settings, api).run(pki)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    settings, pki = load(Path(sys.argv[1]))
    asyncio.run(_run(settings, pki))


main()
