"""Files that record the rounds a client has answered, since masks of a round serve only once.

Flower's `context.state` would forget the rounds. It belongs to one run and one node id, and a
SuperNode keeps it in its main memory, so a restarted node has an empty one.
"""

import os
from pathlib import Path
from urllib.parse import quote

from flwr.app import Context


def answer_once(context: Context, round: int) -> None:
    """Record a round as answered. Refuse a round that is not later than all answered ones.

    A repeated message is refused, too. Training that draws batches at random gives another update,
    and the difference of two replies with the same mask is not masked.
    """
    folder = _folder(context)
    folder.mkdir(parents=True, exist_ok=True)
    last = max((int(file.name) for file in folder.iterdir()), default=-1)
    try:
        if round <= last:
            raise FileExistsError
        (folder / str(round)).touch(exist_ok=False)  # only one of two processes succeeds
    except FileExistsError:
        raise ValueError(
            f"round {round} of run {context.run_id} is refused: this client has answered round "
            f"{max(round, last)} ({folder}), and masks of a round serve once; ask in a later "
            "round or in a new run"
        ) from None


def _folder(context: Context) -> Path:
    """The folder of a run and client, below `memory` of the node config or below Flower's folder.

    A client is its data and not its node id, so the folder has the name in the node config.
    """
    config = context.node_config
    home = Path(os.environ.get("FLWR_HOME", Path.home() / ".flwr"))
    client = quote(str(config.get("client-id", config["partition-id"])), safe="")
    return Path(str(config.get("memory", home / "masked-app"))) / str(context.run_id) / client
