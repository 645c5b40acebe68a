"""HOW WE AGREE: one file for each algorithm, named as users type it; what several share is in rounds/ and server/.

Imported by keras, testing, training and tuning; imports comm, data, files, model and task.
"""
