"""Engines that own a step of training whole."""
