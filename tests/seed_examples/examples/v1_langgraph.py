from langgraph.graph import StateGraph
from sandlot import SandboxClient

def bash_node(state):
    with SandboxClient() as sandbox:
        result = sandbox.execute(state['command'])
        return {'output': result['output']}

# Build your graph...
