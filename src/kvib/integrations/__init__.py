"""kvib inside the frameworks people run; each module needs its framework installed."""
