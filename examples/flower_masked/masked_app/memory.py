"""Rounds that a client has answered, in files: masks serve once, also after a restart.

Flower's `context.state` would forget them. It belongs to one run and one node id, and a SuperNode
keeps it in memory, so a node that is started again has an empty one.
"""

import os
from pathlib import Path
from urllib.parse import quote

from flwr.app import Context


def answer_once(context: Context, round: int) -> None:
    """Note a round as answered; refuse one that is not later than all that were.

    The same question is refused, too: training that draws batches at random gives another update,
    and the difference of two replies with one mask is not masked.
    """
    folder = _folder(context)
    folder.mkdir(parents=True, exist_ok=True)
    last = max((int(file.name) for file in folder.iterdir()), default=-1)
    try:
        if round <= last:
            raise FileExistsError
        (folder / str(round)).touch(exist_ok=False)  # of two processes one succeeds
    except FileExistsError:
        raise ValueError(
            f"round {round} of run {context.run_id} is refused: this client has answered round "
            f"{max(round, last)} ({folder}), and masks of a round serve once; ask in a later "
            "round or in a new run"
        ) from None


def _folder(context: Context) -> Path:
    """By run and client, below Flower's folder, or below `memory` of the node config.

    A client is its data, whatever the node id, so it goes by the name in its node config.
    """
    config = context.node_config
    home = Path(os.environ.get("FLWR_HOME", Path.home() / ".flwr"))
    client = quote(str(config.get("client-id", config["partition-id"])), safe="")
    return Path(str(config.get("memory", home / "masked-app"))) / str(context.run_id) / client
