"""A site: moves the model by its number, and measures it. One of them fails where asked to."""

import sys

import numpy as np
import nvflare.client as flare

failing = sys.argv[1] if len(sys.argv) > 1 else ""
flare.init()
while flare.is_running():
    model = flare.receive()
    name = flare.get_site_name()
    number = int(name.split("-")[1])
    if name == failing:
        raise RuntimeError("as asked")
    params = {"w": np.asarray(model.params["w"]) - number, "bn.running_var": np.full(2, 0.1)}
    metrics = {"number": float(number), "round": float(model.current_round)}
    flare.send(flare.FLModel(params=params, params_type="FULL", metrics=metrics))
