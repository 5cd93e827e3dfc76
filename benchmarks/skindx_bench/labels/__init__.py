"""How many planted wrong labels each way of ranking doubts finds."""
