"""A site: moves the model by its number."""

import numpy as np
import nvflare.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    number = int(flare.get_site_name().split("-")[1])
    params = {name: np.asarray(x) - number for name, x in model.params.items()}
    flare.send(flare.FLModel(params=params, params_type="FULL"))
