from langgraph.graph import StateGraph
from sandlot import SandboxClient

def execute_code_node(state):
    with SandboxClient("http://localhost:8000") as sandbox:
        result = sandbox.execute(state['code'])
        return {
            'output': result['output'],
            'exit_code': result['exit_code']
        }

# Build your graph...
workflow = StateGraph(State)
workflow.add_node("execute", execute_code_node)
