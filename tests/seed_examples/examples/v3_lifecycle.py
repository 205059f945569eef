from sandlot import Lifecycle

lifecycle = Lifecycle(
    storage_path="./storage",
    runtime_path="./sandbox_runtime",
    e2b_api_key="your_key"
)

# Start session
session = lifecycle.start(
    agent_config={"type": "code_executor"},
    environment="Python3",
    provider="e2b"
)

# Execute code
result = lifecycle.sandbox_mgr.execute_code(
    session_id=session["session_id"],
    code="print('Hello World')"
)

# Cleanup
lifecycle.stop(session["session_id"], session["sandbox_id"])
