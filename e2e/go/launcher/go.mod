module sapwood.example/e2e/launcher

go 1.26.0
