"""HOW WE AGREE: one file for each algorithm, named as users type it; what several share is in rounds/ and server/.

Imported by training and all above; imports comm, model, data and optim.
"""
