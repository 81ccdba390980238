"""RoleBench and the Hub: `rolebench` reads and builds the data set, `hub` publishes folders."""
