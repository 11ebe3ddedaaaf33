"""Draws a plan as one picture: variance against budget."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvib.replay import Curve, Plan
from kvib.types import FloatArray

COLOURS = ("#9e9e9e", "#1b6ca8", "#d95f02")


def draw_plan(plan: Plan) -> Figure:
    """Draw both policies and the lower bound with intervals, and the budget that keeps today's
    variance."""
    figure = Figure(figsize=(5.6, 3.8), layout="constrained")
    axis = figure.subplots()
    labels = f"{plan.names[0]}, which drew the rounds", plan.names[1], "no policy has less"
    curves = plan.logging, plan.policy, plan.perfect
    for label, curve, colour in zip(labels, curves, COLOURS, strict=True):
        _line(axis, plan.budgets, curve, label, colour)
    axis.plot(plan.budget, plan.today.value, "o", color="black", label="today")
    axis.axhline(plan.today.value, color="black", linewidth=0.6, linestyle=":")
    if math.isfinite(plan.enough.value):
        axis.axvline(plan.enough.value, color=COLOURS[1], linewidth=0.8, linestyle="--")
        high = min(plan.enough.high, float(plan.budgets[-1]))
        axis.axvspan(plan.enough.low, high, color=COLOURS[1], alpha=0.1, linewidth=0)
    axis.set(xscale="log", yscale="log", xlabel="budget of a round", ylabel="variance per round")
    finding = f"{plan.names[1]} has today's variance at a budget of {plan.enough}"
    axis.set_title(f"{finding}\n{plan.rounds} rounds, intervals of {plan.level:.0%}", fontsize=9)
    axis.legend(fontsize=7)
    return figure


def _line(axis: Axes, budgets: FloatArray, curve: Curve, label: str, colour: str) -> None:
    """Draw one curve with its interval."""
    shown = curve.value > 1e-12 * curve.value[0]  # a logarithmic axis cannot show 0
    x, y = budgets[shown], curve.value[shown]
    axis.plot(x, y, color=colour, linewidth=1.3, label=label)
    low = np.maximum(curve.low[shown], 0.1 * y)
    axis.fill_between(x, low, curve.high[shown], color=colour, alpha=0.15, linewidth=0)
