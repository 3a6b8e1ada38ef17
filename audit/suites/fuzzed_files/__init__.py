"""Files of signals that leak, in a thousand disguises: is any certified? And clean ones in harmless ones?"""
