"""Convolutions as matrix products: the same numbers as torch's own, for every kind of layer."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.func import functional_call, grad, vmap  # noqa: E402

from kvib.sim.engines.convolution import as_products  # noqa: E402

LAYERS = {
    "same": nn.Conv2d(3, 4, 5, padding="same"),
    "valid": nn.Conv2d(3, 4, 3),
    "padded": nn.Conv2d(3, 4, (3, 5), padding=(2, 1)),
    "no bias": nn.Conv2d(3, 4, 1, bias=False),
    "even, same": nn.Conv2d(3, 4, 4, padding="same"),
    "stride": nn.Conv2d(3, 4, 3, stride=2),
    "dilated": nn.Conv2d(3, 4, 3, dilation=2),
    "groups": nn.Conv2d(3, 6, 3, groups=3),
    "reflecting": nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"),
    "padded more than it covers": nn.Conv2d(3, 4, 1, padding=2),
}
PRODUCTS = ("same", "valid", "padded", "no bias")


def gradients(module: nn.Module, values, x):
    """Of a sum of squares, for weights and inputs of several clients."""

    def loss(values, x):
        return functional_call(module, values, (x,)).square().sum()

    return vmap(grad(loss, argnums=(0, 1)))(values, x)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even")
@pytest.mark.parametrize("kind", LAYERS)
def test_gradients_are_those_of_torch(kind):
    generator = torch.Generator().manual_seed(3)
    module = nn.Sequential(LAYERS[kind], nn.Tanh()).double()
    values = {
        name: torch.randn(3, *p.shape, generator=generator, dtype=torch.float64)
        for name, p in module.named_parameters()
    }
    x = torch.randn(3, 2, 3, 7, 8, generator=generator, dtype=torch.float64)
    expected = gradients(module, values, x)
    with as_products(module):
        changed = "_conv_forward" in vars(module[0])
        found = gradients(module, values, x)
    assert changed == (kind in PRODUCTS)
    for name in values:
        torch.testing.assert_close(found[0][name], expected[0][name])
    torch.testing.assert_close(found[1], expected[1])


def test_a_module_is_given_back_as_it_was():
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())
    with pytest.raises(KeyError), as_products(module):
        raise KeyError("the loss failed")
    assert "_conv_forward" not in vars(module[0])


def test_one_client_alone():
    module = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1))
    x = torch.randn(2, 1, 5, 5)
    expected = module(x)
    with as_products(module):
        torch.testing.assert_close(module(x), expected)
