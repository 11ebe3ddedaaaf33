"""The clients: who there is, who can be reached, what drawing one costs."""
