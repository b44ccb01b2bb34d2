-- What frameworks store counts for quotas: what tasks of graphs wrote, and items that belong to a conversation.
UPDATE conversations SET bytes = bytes
    + (SELECT coalesce(sum(length(w.body)), 0) FROM checkpoint_writes w WHERE w.conversation = conversations.id)
    + (SELECT coalesce(sum(octet_length(i.value)), 0) FROM items i WHERE i.conversation = conversations.id)
WHERE id IN (SELECT conversation FROM checkpoint_writes)
   OR id IN (SELECT conversation FROM items WHERE conversation IS NOT NULL);
