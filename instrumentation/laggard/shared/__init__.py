"""What the node exporter and the command line share with a training process: names, formats and who may write them.

Only the standard library is imported, so neither needs a training stack.
"""
