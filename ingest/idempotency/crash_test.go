package idempotency

const childEnv = "GOALKEEPER_TEST_GATEWAY"

func runChild() {}
