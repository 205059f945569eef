module sandlot.dev/agent

go 1.25
