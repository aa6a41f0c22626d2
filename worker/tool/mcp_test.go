package tool_test

const serverMode = "GOALKEEPER_TEST_MCP_SERVER"

func serveStdio(string) {}
