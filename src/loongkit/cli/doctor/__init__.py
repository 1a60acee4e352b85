"""``loongkit doctor``: would the prelude really run in the processes of a job started here?"""
