"""The store methods shared by both engines, part by part; each engine's store class inherits all of them."""
