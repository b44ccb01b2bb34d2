"""The store contract, part by part; `store.base.Store` is all of it."""
