"""holdfast as the store of agent frameworks, one file for each. Imported only when used."""
