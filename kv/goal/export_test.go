package goal

// JoinedKey is ToolCallKey without its checks, to show what they are for.
var JoinedKey = joinedKey
