"""Programs that measure: what laggard costs, how often it is right, what breaks it and how far it goes.

Nobody installs them.
"""
