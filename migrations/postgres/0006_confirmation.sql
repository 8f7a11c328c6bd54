-- A person answers a call once.
create unique index event_confirmed on event (session, tool_use_id) where type = 'user.tool_confirmation';
