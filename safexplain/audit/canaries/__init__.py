"""Canaries: does a differentially private training keep the epsilon that it claims, if one record is substituted?"""
