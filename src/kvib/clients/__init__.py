"""The clients: the population, the rates at which clients answer, and the prices of draws."""
