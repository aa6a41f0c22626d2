package notifier_test

func crashChild() bool { return false }
