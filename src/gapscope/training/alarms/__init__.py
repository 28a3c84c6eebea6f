"""Alarms that say, while a network trains, that its accuracy on new data has peaked; one a file, chosen by name."""
