"""How a store behaves when it has grown: the same measurements beside nothing, a million and ten million records."""
