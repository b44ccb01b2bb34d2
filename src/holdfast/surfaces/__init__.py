"""What people and programs touch. Surfaces translate to and from `Holdfast`; no rules live here."""
