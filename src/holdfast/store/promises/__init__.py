"""What a store promises, part by part; `store.base.Store` is all of it."""
